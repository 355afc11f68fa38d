"""Hardware barriers of the mega kernels."""


class NamedBarrier:
    """Numbers of `barrier.cta`; 0 stays free for the whole CTA."""

    DISPATCH = 1  # 128 dispatch threads
    DISPATCH_EPILOGUE = 2  # dispatch has pulled all, epilogue has passed BEFORE_COMBINE
    EPILOGUE_ALL = 3
    EPILOGUE_GROUP = 4  # and 5: one per epilogue warpgroup
