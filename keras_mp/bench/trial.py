"""Short, interleaved trials of a user's model: float32 against mixed precision.

The result is a ``Trial`` (``keras_mp.bench.results``); ``trial.to_json()`` is what ``keras-mp bench
--json`` prints and what ``keras-mp estimate --from-trial`` reads. Its schema, format 1:

```
{"kind": "keras-mp trial", "format": 1,
 "model": "digits.keras",            // what was given
 "backend": "torch", "versions": {"keras": "3.15.1", "torch": "2.13.0"},
 "device": "NVIDIA H100 ...", "threads": 1 or null, "parameters": 324960,
 "batch_size": 256, "steps": 20, "rounds": 5,
 "data": "scenes.npz" or "synthetic", "notes": ["..."],
 "variants": [                       // float32 first; then those that were asked for
   {"name": "float32",               // float32 | mixed_bfloat16 | mixed_float16 | planned
    "policy": "float32",             // of "planned": the policy that its plan was made for
    "samples_per_s": [4100.0, ...],  // one figure a round
    "rate": {"median": 4100.0, "low": 4080.0, "high": 4150.0},        // quartiles
    "speedup": null                  // of the others: ratios to float32 in the same round,
                                     // {"median": 2.1, "low": 2.0, "high": 2.2}
    "losses": [0.031, ...],          // a step each, same batches, same weights to begin with
    "split": {"input": 0.001, "compute": 0.05, "optimizer": 0.004, "other": 0.002},  // seconds a
                                     // step; or null
    "memory": {"what": "allocator peak" | "parameters + slots + saved bytes",
               "points": [[64, 1200000], [128, 2100000], [256, 3900000]],   // batch, bytes
               "fixed": 300000.0, "slope": 14062.5, "slopes": [14062.5, 14062.5],
               "largest_batch": 4096 or null, "budget": 68719476736, "headroom": 0.1} or null,
    "memory_unknown": null or "why there is no memory",
    "skipped": 0, "support": "fast" | "slow" | "emulated" | "none" | "unknown",
    "support_why": "...", "float32_layers": ["head"], "error": null or "..."}],
 "advice": {"switch_to": "planned", "held_back": [["input-bound", "..."]], "paragraph": "..."}}
```

A reader ignores keys that it does not know. A variant that failed has its ``error`` and no ``rate``.
Numbers that are not finite are the strings "nan", "inf" and "-inf".
"""
