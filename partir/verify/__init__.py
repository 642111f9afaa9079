"""The judge: what a real compiler made of a program, read out of what it compiled, beside what was predicted."""
