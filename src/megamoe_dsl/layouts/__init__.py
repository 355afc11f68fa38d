"""Where every byte is: regions, pools, scale-factor orders, swizzles, SMEM and TMEM plans.

Pure Python.  Functions that a kernel also calls work on Python ints and on traced DSL integers alike.
"""
