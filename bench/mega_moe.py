"""Times the fused layer on the GPUs of this host, beside the baseline; the same as `megamoe bench`, without the command line's packages.

python bench/mega_moe.py --preset flash,pro --tokens 8,64,512 --ranks 8 --artifacts FOLDER --baseline SITE --variants
python bench/mega_moe.py --preset flash --tokens 64 --ranks 8 --artifacts FOLDER --soak 1000
"""

from megamoe_dsl.bench.arguments import main

if __name__ == "__main__":
    main()
