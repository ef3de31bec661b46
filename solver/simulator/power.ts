/** Electrical power of devices that serve, as shares of their limit (TDP). */

/**
 * A device that holds a model and runs nothing: 75 to 90 W of the 700 W of Hopper, 50 to 80 W of the 400 W of
 * Ampere. CPUs keep caches, memory controllers and links awake: a third to a half on SPECpower_ssj2008.
 */
const idle_share = { gpu: 0.15, cpu: 0.4 } as const;
/**
 * A step that is bound by memory: A100s draw about 60% while they decode (POLCA, arXiv:2308.12908), H200s 20
 * to 43% (arXiv:2605.11999). CPUs run at their limit whenever all cores do.
 */
const memory_bound_share = { gpu: 0.5, cpu: 0.9 } as const;

/**
 * Watts of one device: `idle` while nothing runs; while steps run, from the memory-bound share up to the
 * limit, in proportion to the arithmetic done over what large products reach (`compute`, 0 to 1).
 */
export function devicePower(
  { kind, tdp_w }: { kind: 'gpu' | 'cpu'; tdp_w: number },
  busy: readonly { time_share: number; compute: number }[],
): number {
  let idle = 1;
  let share = 0;
  for (const { time_share, compute } of busy) {
    idle -= time_share;
    share += time_share * (memory_bound_share[kind] + (1 - memory_bound_share[kind]) * Math.min(1, compute));
  }
  return tdp_w * (Math.max(0, idle) * idle_share[kind] + share);
}
