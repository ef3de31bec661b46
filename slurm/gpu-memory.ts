/** Device names and memory by what sites call their GPUs: Slurm itself knows neither. */

interface KnownDevice {
  pattern: RegExp;
  model: string;
  memory_gb: number;
  /** The name stands for several sizes; the smaller one is taken. */
  ambiguous?: string;
}

/** From the vendors' data sheets; GB are 10^9 bytes as printed there. The first match counts. */
const known: readonly KnownDevice[] = [
  { pattern: /gb200/i, model: 'GB200', memory_gb: 186 },
  { pattern: /gh200|grace.?hopper|\bgh\b/i, model: 'GH200', memory_gb: 96, ambiguous: '96 or 144 GB' },
  { pattern: /b200/i, model: 'B200', memory_gb: 180 },
  { pattern: /h200/i, model: 'H200', memory_gb: 141 },
  { pattern: /h100/i, model: 'H100', memory_gb: 80, ambiguous: '80, 94 or 96 GB' },
  { pattern: /a100.*80|80.*a100/i, model: 'A100', memory_gb: 80 },
  { pattern: /a100/i, model: 'A100', memory_gb: 40, ambiguous: '40 or 80 GB' },
  { pattern: /v100.*32/i, model: 'V100', memory_gb: 32 },
  { pattern: /v100/i, model: 'V100', memory_gb: 16, ambiguous: '16 or 32 GB' },
  { pattern: /l40s/i, model: 'L40S', memory_gb: 48 },
  { pattern: /l40/i, model: 'L40', memory_gb: 48 },
  { pattern: /\bl4\b/i, model: 'L4', memory_gb: 24 },
  { pattern: /a40/i, model: 'A40', memory_gb: 48 },
  { pattern: /a30/i, model: 'A30', memory_gb: 24 },
  { pattern: /a10/i, model: 'A10', memory_gb: 24 },
  { pattern: /p100/i, model: 'P100', memory_gb: 16, ambiguous: '12 or 16 GB' },
  { pattern: /\bt4\b/i, model: 'T4', memory_gb: 16 },
  { pattern: /mi300x/i, model: 'MI300X', memory_gb: 192 },
  { pattern: /mi300a?/i, model: 'MI300A', memory_gb: 128 },
  { pattern: /mi250x?|mi200/i, model: 'MI250X', memory_gb: 64 },
  { pattern: /mi210/i, model: 'MI210', memory_gb: 64 },
  { pattern: /mi100/i, model: 'MI100', memory_gb: 32 },
];

export interface RecognizedDevice {
  model: string;
  kind: 'gpu' | 'mig';
  /** Undefined: not known by this name. */
  memory_gb?: number;
  ambiguous?: string;
}

/** The device behind a GRES type (or feature) such as `a100`, `nvidia_h100_80gb_hbm3`, `a100_1g.5gb`. */
export function recognizeDevice(name: string): RecognizedDevice {
  const slice = /\d+g\.(\d+)gb/i.exec(name);
  const device = known.find(({ pattern }) => pattern.test(name.replaceAll('_', ' ')));
  if (slice !== null) return { kind: 'mig', model: name, memory_gb: Number(slice[1]) };
  if (device === undefined) return { kind: 'gpu', model: name };
  return {
    kind: 'gpu',
    model: device.model,
    memory_gb: device.memory_gb,
    ambiguous: device.ambiguous,
  };
}
