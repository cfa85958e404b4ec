"""A plain PyTorch loop, without Keras: torch.autocast, GradScaler, accumulation, and a journal.

    python examples/torch_loop.py --runs runs --steps 300
    keras-mp monitor runs

Four small batches make one step. The last line is the share of unseen digits that were recognised.
"""

import argparse

MICRO_BATCHES = 4


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", default="runs", help="folder for the journal")
    parser.add_argument("--name", default="torch-loop")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=64)
    args = parser.parse_args(argv)

    import torch
    from sklearn.datasets import load_digits

    import keras_mp

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x, y = load_digits(return_X_y=True)  # 1,797 handwritten digits, 8 x 8
    x = torch.tensor(x / 16, dtype=torch.float32, device=device)
    y = torch.tensor(y, device=device)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)
    ).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device)
    loss_of = torch.nn.CrossEntropyLoss()
    skipped, scale = 0, scaler.get_scale()

    with keras_mp.Run(
        args.runs, args.name, policy="autocast float16", planned_steps=args.steps
    ) as run:
        for step in range(args.steps):
            total = torch.zeros((), device=device)
            for _ in range(MICRO_BATCHES):
                picked = torch.randint(1500, (args.batch_size // MICRO_BATCHES,), device=device)
                with torch.autocast(device, torch.float16):
                    loss = loss_of(model(x[picked]), y[picked]) / MICRO_BATCHES
                scaler.scale(loss).backward()
                total += loss.detach()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
            if step % 20 == 0:  # get_scale() waits for the device: not at each step
                skipped, scale = skipped + (scaler.get_scale() < scale), scaler.get_scale()
            run.step(loss=total, samples=args.batch_size, scale=scale, skipped=skipped)

        with torch.no_grad():
            share = (model(x[1500:]).argmax(1) == y[1500:]).float().mean().item()
        run.result(right=share)
    print(f"right {share:.3f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
