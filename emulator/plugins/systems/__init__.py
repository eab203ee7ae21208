"""Storage systems on paper: how many accelerators they feed, what accelerators need, and efficiency."""
