"""What kernels of several families are built from: main loops, loaders, queues.  A block knows addresses, barriers and tile shapes, and no
kernel: it imports device, schedule, hardware and layouts only."""
