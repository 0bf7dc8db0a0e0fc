"""The GPU path. Imported only when impl="triton" is asked for; works on CPU tensors under TRITON_INTERPRET=1."""
