/** oneDNN's BF16 product on the same cores, as torch calls it. */
import { execFileSync } from 'node:child_process';

/** Weights [n, k] times m rows, by as many matrices in turn as have these bytes. */
export interface OnednnShape {
  n: number;
  k: number;
  m: number;
  weight_bytes: number;
}

/**
 * Prints GFLOP/s of each shape: the best of all rounds, with weights as a model has them, and with weights that were
 * laid out for the product once, as compiled models have them.
 */
const program = `
import sys, time, json, torch
if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
  print("null")
  sys.exit()
shapes, threads, rounds = json.loads(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(threads)
torch.manual_seed(1)
found = []
def best_of(layers, product):
  best = 1e9
  for _ in range(rounds + 1):
    start = time.perf_counter()
    for layer in layers: product(layer)
    best = min(best, (time.perf_counter() - start) / len(layers))
  return best
with torch.inference_mode():
  for n, k, m, weight_bytes in shapes:
    count = max(1, round(weight_bytes / (2 * n * k)))
    plain = [torch.randn(n, k).bfloat16() for _ in range(count)]
    x = torch.randn(m, k).bfloat16()
    best = best_of(plain, lambda weights: torch.nn.functional.linear(x, weights))
    packed = [torch.ops.mkldnn._reorder_linear_weight(weights, m) for weights in plain]
    del plain
    best = min(best, best_of(packed, lambda weights: torch.ops.mkldnn._linear_pointwise(x, weights, None, "none", [], "")))
    found.append(2 * n * k * m / best / 1e9)
print(json.dumps(found))
`;

/**
 * @param python one with torch
 * @returns GFLOP/s of each shape; undefined: it has no product in BF16 for this CPU
 */
export function onednnRates(
  python: string,
  shapes: readonly OnednnShape[],
  threads: number,
  rounds: number,
): number[] | undefined {
  const asked = shapes.map(({ n, k, m, weight_bytes }) => [n, k, m, weight_bytes]);
  const args = ['-c', program, JSON.stringify(asked), String(threads), String(rounds)];
  const found: unknown = JSON.parse(execFileSync(python, args, { encoding: 'utf8' }));
  if (found === null) return undefined;
  if (!Array.isArray(found) || found.length !== shapes.length)
    throw new Error(`${python} printed no figures`);
  return found.map(Number);
}
