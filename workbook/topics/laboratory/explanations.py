"""What each control of the laboratory does: one or two sentences, shown as its tooltip."""

from __future__ import annotations

EXPLAINED = {
    "model": "The policy to train: bundled (a toy of 33 words), smollm2-135m (reads English, fetched once, 98 MB), a "
    "folder of a model, or a hub id.",
    "quantization": "NF4 keeps the frozen weights in 4 bits: an eighth of the memory of 32-bit ones. It needs LoRA.",
    "lora": "Rank of trained adapters beside frozen weights. It saves most of the optimizer's memory; a larger rank "
    "can change more.",
    "task": "Prompts and reward: chain (the toy's sums), gym:<data set>, hub:<data set>, or own:<file> for a CSV or "
    "JSON-lines file of yours with the columns prompt and answer.",
    "task_options": "name: value pairs. For own: reward: file.py:function, the function that scores a completion.",
    "chat": "Put each prompt into the model's chat template, as a user's message. Models tuned on chats need it.",
    "num_prompts": "Prompts to train on, drawn from the task; of your own file at most its rows minus those held out.",
    "eval_prompts": "Prompts that are never trained on: their reward is measured before and after training. 0: none.",
    "max_tokens": "The longest completion, in tokens. Longer ones are cut off, and cost more memory and time.",
    "advantage_estimator": "How rewards become each rollout's or token's advantage; own:<file.py>:<function> for a "
    "rule of yours.",
    "ratio": "Whether the importance ratio and its clipping are per token (GRPO) or per sequence (GSPO).",
    "clipping": "How ratios are bounded: asymmetric (PPO's), symmetric (TV-style), or not at all.",
    "group_transform": "A change of the group's weights before the loss, e.g. min-replace; none leaves them.",
    "loss_type": "By what the sum over tokens is divided: dr_grpo by the longest length, grpo by each sequence's, dapo "
    "by the batch's tokens.",
    "prompts": "Different prompts in one generation batch. Times the group size, that is the rollouts of a batch.",
    "group_size": "Completions sampled for each prompt. Their mean reward is the baseline, so a group of equal rewards "
    "teaches nothing.",
    "mini_batches": "Optimizer steps that a generation batch is cut into.",
    "batching": "Which rollouts share a mini-batch. It needs two mini-batches or more to have an effect.",
    "reuse": "How often each generation batch is gone through. More than once is off-policy, and needs clipping.",
    "accumulation": "Pieces of a mini-batch that pass through the model one after the other: less memory, same step.",
    "optimizer": "AdamW; AdamW without momentum (beta1 = 0); or plain SGD, which needs a larger learning rate.",
    "learning_rate": "Size of a step. About 1e-3 for the bundled toy and for LoRA, 1e-5 where all weights of a "
    "language model are trained; too large, and the policy collapses.",
    "max_grad_norm": "Scale a gradient down whose norm exceeds 1. It rescales unlike batches unlike amounts.",
    "steps": "Optimizer steps of a run.",
    "seeds": "Runs of the same settings with other prompts and random numbers. A comparison needs six or more.",
    "vary": "One setting to compare: each of its values is trained with each seed, on the same prompts.",
    "values": "Values of the varied setting, with semicolons or commas between them.",
    "name": "How the run's folder begins; you will know it by this in the list of runs.",
}
