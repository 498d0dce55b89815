"""Reference trainer: a small GPT or MoE trained in plain PyTorch, as a run that can be measured.

    torchrun --standalone --nproc-per-node 2 -m collectors.trainer --num-layers 4 ...

It takes Megatron-LM's argument names and prints Megatron-LM's lines. It needs torch and nothing
else of this repository. gloo on CPUs, nccl or rccl on GPUs.
"""
