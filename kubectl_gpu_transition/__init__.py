"""kubectl gpu-transition: move one GPU node between its modes without pulling a device from under a workload."""

__version__ = "0.1.0"
