"""The emulated accelerator: how long a step computes, and waiting that long."""
