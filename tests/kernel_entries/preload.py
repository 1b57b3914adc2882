"""Owns nothing: importing it imports what every case uses, once, before the cases are forked."""

import deep_gemm
import sglang.srt.layers.attention.dsa_backend
import sglang.srt.mem_cache.memory_pool
import sglang.srt.model_executor.forward_batch_info
import sglang.srt.model_executor.model_runner
import sglang.srt.model_executor.runner
import sglang.srt.models.deepseek_v2
import sglang.srt.models.glm4_moe
import sglang.srt.server_args  # noqa: F401
import torch

import sglang_glm53.model.model  # noqa: F401

# ATen's pool of threads does not survive a fork.
torch.set_num_threads(1)
deep_gemm.get_num_sms = lambda: torch.cuda.get_device_properties(0).multi_processor_count
