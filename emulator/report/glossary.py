"""The glossary of a report: at the foot of every page, and in the documentation."""

from __future__ import annotations

GLOSSARY = {
    "process": "One emulated accelerator: a process that reads batches as a training job does and waits "
    "where the accelerator would compute.",
    "rank": "An MPI process that emulates one accelerator: the same as a process here.",
    "sample, batch, step": "A sample is one training example (a volume, an image). A batch is what an "
    "accelerator takes at once. A step is a batch, read and computed on.",
    "point": "One number of processes, run once.",
    "client": "A host that reads. Its cores, its memory, its network link and the loader are the client's.",
    "loader": "The part that reads and prepares batches: torch is PyTorch's DataLoader with its worker "
    "processes; direct reads the same bytes in the same order for a fraction of the CPU.",
    "AU": "Accelerator utilization: nominal compute over elapsed time, the first step of each epoch "
    "left out, as MLPerf Storage defines it. With the torch loader it is that of a training on these "
    "clients, with every delay of theirs; with direct it is what the storage can feed.",
    "X/X_ideal": "Samples per second over what accelerators that never wait would consume.",
    "ideal": "Processes x batch size / step time: the throughput if no process ever waited.",
    "knee": "The largest number of processes that still get the threshold's share of their ideal "
    "throughput, 90 % unless the workload says otherwise; between the counts that were run it "
    "is read from a fitted curve.",
    "interval": "The knee lies in it with a probability of 95 %, given run-to-run variation and curves "
    "of the shape that storage has.",
    "saturation": "The throughput that more processes no longer raise, if a count shows it.",
    "demand": "The rate of one process that never waits: batch size x mean sample / step time.",
    "wait": "The share of the time in which an accelerator had no batch.",
    "barrier": "Time in which a process waited for the others, where training would. Figures count it as "
    "what the slowest process did at the same time.",
    "overshoot": "Time by which the emulating process held up its accelerator: it took its batch late, or "
    "woke up late.",
    "bound": "The limit of a point: compute (all accelerators are fed), storage, a client's CPU, CPU "
    "quota or link, or the loader. The evidence stands beside it.",
    "flag": "A reason to doubt a point: what was measured, the threshold, and what to do. A flag "
    "informs; points that memory served are left out of the knee.",
    "cold": "Reads come from the storage: O_DIRECT, or pages evicted before each read. Reads that the page "
    "cache served all the same are measured. Warm: the page cache may serve reads, which measures the "
    "client.",
    "shaped": "Storage slowed down on purpose, to a known rate. Its figures show that shape, no real "
    "storage.",
    "fio": "A tool that reads and writes without any training; its best figure is a limit of the storage.",
}
"""Term -> what it means, in the order in which a reader meets them."""

TERMS = {
    "ranks": "process",
    "accel.": "process",
    "AU %": "AU",
    "X/X_ideal": "X/X_ideal",
    "bound by": "bound",
    "wait %": "wait",
    "notes": "flag",
    "One process asks for": "demand",
    "Saturates at": "saturation",
}
"""Head of a column or name of a card -> its term."""


def term_of(name: str) -> str:
    """The id of the term that explains `name` on a page; empty where there is none."""
    plain = name.replace("\u200b", "")
    term = "knee" if plain.startswith("Knee") else TERMS.get(plain, "")
    return anchor(term) if term else ""


def anchor(term: str) -> str:
    return "term-" + "".join(letter if letter.isalnum() else "-" for letter in term.lower())
