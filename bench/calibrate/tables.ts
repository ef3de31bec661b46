/** The measured tables, as typed rows. They are others' work; see docs/simulator.md for what each holds. */
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { packageRoot } from '../../host/package-root.ts';
import { MissingNeed } from '../need.ts';

/** Where the tables lie: `HPCSERVE_TRUTH`, or `shared/truth` beside the project. */
export function truthFolder(): string | undefined {
  const folder = process.env.HPCSERVE_TRUTH ?? join(packageRoot, '..', 'shared', 'truth');
  return existsSync(join(folder, 'silicon_agg_sample.csv')) ? folder : undefined;
}

/** The folder. @throws MissingNeed where it is not there */
export function requireTruth(): string {
  const folder = truthFolder();
  if (folder !== undefined) return folder;
  throw new MissingNeed(
    'the measured tables that the simulator is judged by are not there',
    'set HPCSERVE_TRUTH to a folder with them; docs/simulator.md says which they are and who publishes each',
  );
}

/** One row of NVIDIA AIConfigurator's `silicon` data: a closed loop of `batch` requests. */
export interface SiliconRow {
  backend: 'vllm' | 'trtllm';
  model: string;
  system: string;
  isl: number;
  osl: number;
  batch: number;
  tp: number;
  ttft_ms: number;
  tpot_ms: number;
}

export function siliconRows(folder: string): SiliconRow[] {
  const seen = new Set<string>();
  return csv(join(folder, 'silicon_agg_sample.csv')).flatMap((row) => {
    const key = JSON.stringify(row);
    if (seen.has(key)) return [];
    seen.add(key);
    return [
      {
        backend: row.backend as SiliconRow['backend'],
        model: row.model_path!,
        system: row.system!,
        isl: Number(row.isl),
        osl: Number(row.osl),
        batch: Number(row.batch_size),
        tp: Number(row.tp_size),
        ttft_ms: Number(row.silicon_ttft_ms),
        tpot_ms: Number(row.silicon_tpot_ms),
      },
    ];
  });
}

/** One iteration that LLM-Mesh's authors measured: a prompt, or a decode step at an average length. */
export interface IterationRow {
  model: string;
  device: string;
  phase: 'prefill' | 'decode';
  tokens: number;
  batch: number;
  ms: number;
}

export function iterationRows(folder: string): IterationRow[] {
  return csv(join(folder, 'llm_mesh_measured_ms.csv')).map((row) => ({
    model: row.model!,
    device: row.device!,
    phase: row.phase as IterationRow['phase'],
    tokens: Number(row.tokens),
    batch: Number(row.batch),
    ms: Number(row.ms),
  }));
}

/** One product or small operator of Vidur's profiles: median milliseconds for so many tokens. */
export interface OperatorRow {
  gpu: 'a100' | 'h100';
  operator: 'qkv' | 'out' | 'up' | 'down' | 'elementwise';
  tp: number;
  tokens: number;
  inner: number;
  columns: number;
  /** Of the small operators together: bytes they move. */
  bytes: number;
  ms: number;
}

export function operatorRows(folder: string): OperatorRow[] {
  const files = [
    ['a100', 'vidur_a100_meta-llama_llama-2-7b-hf_mlp.csv'],
    ['a100', 'vidur_a100_meta-llama_meta-llama-3-8b_mlp.csv'],
    ['h100', 'vidur_h100_meta-llama_llama-2-70b-hf_mlp.csv'],
  ] as const;
  return files.flatMap(([gpu, file]) =>
    csv(join(folder, file)).flatMap((row) => {
      const tp = Number(row.num_tensor_parallel_workers);
      const tokens = Number(row.num_tokens);
      const embd = Number(row.n_embd);
      const width = Number(row.n_expanded_embd) / tp;
      const dim = embd / Number(row.n_head);
      const heads = Number(row.n_head) / tp;
      const kv = Number(row.n_kv_head) / tp;
      const time = (name: string): number => Number(row[`time_stats.${name}.median`]);
      const product = (
        operator: OperatorRow['operator'],
        name: string,
        inner: number,
        columns: number,
      ): OperatorRow => ({
        gpu,
        operator,
        tp,
        tokens,
        inner,
        columns,
        bytes: 0,
        ms: time(name),
      });
      return [
        product('qkv', 'attn_pre_proj', embd, (heads + 2 * kv) * dim),
        product('out', 'attn_post_proj', heads * dim, embd),
        product('up', 'mlp_up_proj', embd, 2 * width),
        product('down', 'mlp_down_proj', width, embd),
        {
          gpu,
          operator: 'elementwise' as const,
          tp,
          tokens,
          inner: 0,
          columns: 0,
          bytes: tokens * 2 * (8 * embd + 2 * (heads + kv) * dim + 3 * width),
          ms:
            time('input_layernorm') +
            time('post_attention_layernorm') +
            time('attn_rope') +
            time('mlp_act') +
            2 * time('add'),
        },
      ];
    }),
  );
}

/** One all-reduce of Vidur's profiles, within a node. */
export interface AllReduceRow {
  gpu: 'a100' | 'h100';
  devices: number;
  bytes: number;
  ms: number;
}

export function allReduceRows(folder: string): AllReduceRow[] {
  return (['a100', 'h100'] as const).flatMap((gpu) =>
    csv(join(folder, `vidur_${gpu}_dgx_all_reduce.csv`))
      .filter((row) => row.num_workers === row.devices_per_node)
      .map((row) => ({
        gpu,
        devices: Number(row.num_workers),
        bytes: Number(row.size),
        ms: Number(row['time_stats.all_reduce.median']),
      })),
  );
}

/** One request of the recorded vLLM run, seconds from the first arrival. */
export interface RecordedRequest {
  arrival_s: number;
  input_tokens: number;
  output_tokens: number;
  ttft_s: number;
  tpot_s: number;
  e2e_s: number;
}

export function recordedRun(folder: string): RecordedRequest[] {
  const rows = readFileSync(join(folder, 'vllm019_rtxpro6000_llama31_8b_requests.jsonl'), 'utf8')
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => JSON.parse(line) as Record<string, number>);
  const start = rows[0]!.queued_ts!;
  return rows.map((row) => ({
    arrival_s: row.queued_ts! - start,
    input_tokens: row.input_toks!,
    output_tokens: row.output_toks!,
    ttft_s: row.first_token_ts! - row.queued_ts!,
    tpot_s: (row.last_token_ts! - row.first_token_ts!) / (row.output_toks! - 1),
    e2e_s: row.last_token_ts! - row.queued_ts!,
  }));
}

/** These tables quote nothing and hold no commas in their cells. */
function csv(file: string): Record<string, string>[] {
  const [head, ...lines] = readFileSync(file, 'utf8').trim().split('\n');
  const names = head!.trim().split(',');
  return lines.map((line) => {
    const cells = line.trim().split(',');
    return Object.fromEntries(names.map((name, index) => [name, cells[index] ?? '']));
  });
}
