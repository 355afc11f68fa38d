"""What roles are made of: one function per PTX instruction, ring state, waits and barriers, casts in registers."""
