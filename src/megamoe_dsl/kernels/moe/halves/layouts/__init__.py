"""Pure layouts of `ep_moe`: memory that ranks share, and what each word of it means."""
