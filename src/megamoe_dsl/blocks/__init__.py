"""What kernels of several families are built from: main loops, loaders, queues.  A block knows addresses, barriers and tile shapes, and no
kernel: it imports device, schedule, hardware and layouts only."""

from ..lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
