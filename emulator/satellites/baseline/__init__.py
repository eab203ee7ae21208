"""The storage's own limits, measured by fio: what a training knee is to be compared with."""
