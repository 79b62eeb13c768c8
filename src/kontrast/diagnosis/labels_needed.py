"""stub"""

import xarray as xr


class LabelsNeeded: ...


def labels_in(result):
    return None


def measure(subject):
    return xr.Dataset(), {}
