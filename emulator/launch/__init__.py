"""Start ranks, join and watch them; child programs; the scratch folder."""
