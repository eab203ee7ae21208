"""Step logs of ranks whose costs are known, as the loop of a training writes them."""

import numpy as np

from emulator.record.steps import STEP

STEP_SECONDS = 0.05
COSTS = ("gap", "hand", "sleep", "wake")
"""Between arrivals; handing a batch over; waking late from compute; waking late from a barrier."""


def emulated(costs, sync, per_epoch=4, *, ask=False):
    """Return the step log of ranks with these costs, each of shape (steps, ranks).

    With `ask`, a batch is asked for when the one before it was taken, and `gap` is how long it then takes.
    """
    steps, ranks = costs["gap"].shape
    arrived = np.cumsum(costs["gap"], axis=0)
    rows = np.zeros((ranks, steps), dtype=STEP)
    free, process, got = np.zeros(ranks), np.zeros(ranks), np.zeros(ranks)
    for k in range(steps):
        rows[:, k]["requested"] = got if ask else 0.0
        if ask:
            arrived[k] = got + costs["gap"][k]
        got = np.maximum(process, arrived[k]) + costs["hand"][k]
        begin = np.maximum(free, arrived[k])
        computed = got + STEP_SECONDS + costs["sleep"][k]
        gate = sync == "step" or (sync == "epoch" and ((k + 1) % per_epoch == 0 or k + 1 == steps))
        end = np.full(ranks, computed.max()) if gate else computed
        process = end + costs["wake"][k] if gate else end
        row = rows[:, k]
        row["rank"], row["epoch"], row["step"] = np.arange(ranks), k // per_epoch, k % per_epoch
        row["samples"], row["begin"], row["wait"], row["compute"] = 1, free, begin - free, STEP_SECONDS
        row["overshoot"], row["barrier"] = computed - begin - STEP_SECONDS, end - computed
        row["late"], row["arrived"] = process - end, arrived[k]
        free = end
    return rows.reshape(-1)


def drawn(seed, steps=17, ranks=3, **mean):
    random = np.random.default_rng(seed)
    return {name: random.exponential(mean.get(name, 0.0) + 1e-12, (steps, ranks)) for name in COSTS}
