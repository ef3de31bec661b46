/**
 * A real vLLM on CPU cores, behind a real node agent. Each engine takes one core, 1 GiB for its KV cache and about 1.5
 * GiB beside it, and serves after 30 to 100 s on a small machine, so a suite starts few and asks much of each.
 */
import { dirname } from 'node:path';
import type { LaunchSpec, UnitSpec } from '../../spec/launch.ts';
import type { ModelSpec } from '../../spec/model-yaml.ts';
import { unitOf } from '../agent/support.ts';
import { vllmPython } from './environments.ts';
import { writeTinyModel } from './tiny-model.ts';

/** How long it may take to serve, ms: two of them begin beside each other on two cores. */
export const vllm_ready_ms = 420_000;

/** Longest sequence of its tiny model; a byte is a token. */
const positions = 2048;

export interface RealVllm {
  python: string;
  /** Of a launch. */
  engine_prefix: string[];
  /** Writes a tiny model into a folder; `plain` as `writeTinyModel` has it. */
  model(folder: string, plain?: boolean): string;
  /** A unit that serves it. */
  unit(name: string, model_path: string, model?: Partial<ModelSpec>, unit?: Partial<UnitSpec>): UnitSpec;
  /** Of an agent. */
  launch: Partial<LaunchSpec>;
}

/** Undefined, with words for the title of a suite, where it is not installed. */
export function realVllm(): { vllm?: RealVllm; lacking: string } {
  const { found: python, lacking } = vllmPython();
  if (python === undefined) return { lacking };
  const engine_prefix = ['/usr/bin/env', `PATH=${dirname(python)}:${process.env.PATH}`];
  return {
    lacking,
    vllm: {
      python,
      engine_prefix,
      launch: { engine_prefix },
      model: (folder, plain) => writeTinyModel(python, folder, positions, plain),
      unit: (name, model_path, model = {}, unit = {}) =>
        unitOf(
          {
            name,
            precision: 'f32',
            max_sequences: 4,
            engine_args: ['--enforce-eager'],
            environment,
            ...model,
          },
          { engine: 'vllm', model_path, context_tokens: positions, unit: `${name}-0`, ...unit },
        ),
    },
  };
}

/** Of the engine: what it would take of the machine otherwise is most of it. */
const environment = {
  VLLM_CPU_KVCACHE_SPACE: '1',
  VLLM_CPU_OMP_THREADS_BIND: 'nobind',
  OMP_NUM_THREADS: '1',
} as const;
