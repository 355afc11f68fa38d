"""`python -m megamoe_dsl`, which is `megamoe`."""

from .cli import main

if __name__ == "__main__":
    main()
