/** A model's summary as lines of name and value, for people. */
import type { ModelFileSummary } from '../../spec/model-summary.ts';
import { formatBytes } from './quantities.ts';
import { printable } from './style.ts';

export function summaryLines(summary: ModelFileSummary): string[] {
  const { experts } = summary;
  const rows: [string, string][] = [
    ['name', summary.name],
    ['format', summary.format],
    ['architecture', summary.architecture],
    ['parameters', parameters(summary)],
    ['quantization', summary.quantization],
    ['layers', String(summary.n_layer)],
    ['embedding', `${summary.n_embd}${summary.tied_embeddings ? ', serves as output too' : ''}`],
    ['heads', `${summary.n_head} of ${summary.head_dim}, keys and values ${summary.n_head_kv}`],
    ['feed forward', String(summary.n_ff)],
    ...(experts
      ? [
          ['experts', `${experts.count} of ${experts.n_ff}, ${experts.used_per_token} a token`] as [
            string,
            string,
          ],
        ]
      : []),
    ['vocabulary', `${summary.n_vocab} tokens`],
    ['context', `${summary.n_ctx_train} tokens in training`],
    ...(summary.sliding_window
      ? [['window', `${summary.sliding_window} tokens in some layers`] as [string, string]]
      : []),
    ['weights', `${formatBytes(summary.weight_bytes)} (${types(summary)})`],
    ['files', formatBytes(summary.file_bytes)],
    ['KV cache', `${formatBytes(summary.kv_bytes_per_token)} a token at f16`],
    ['chat template', summary.has_chat_template ? 'yes' : 'none'],
    ['native engine', summary.supported_by_native === true ? 'yes' : `no: ${summary.supported_by_native}`],
  ];
  const width = Math.max(...rows.map(([name]) => name.length));
  return rows.map(([name, value]) => `${name.padEnd(width)}  ${printable(value)}`);
}

function parameters(summary: ModelFileSummary): string {
  const active =
    summary.n_params_active < summary.n_params
      ? `, ${formatCount(summary.n_params_active)} active a token`
      : '';
  return `${formatCount(summary.n_params)} (${summary.n_params})${active}`;
}

function types(summary: ModelFileSummary): string {
  return Object.entries(summary.tensor_types)
    .sort(([, a], [, b]) => b.bytes - a.bytes)
    .map(([type, { tensors, bytes }]) => `${type} ${formatBytes(bytes)} in ${tensors}`)
    .join(', ');
}

/** Decimal prefixes, as parameters are counted: `1.24 B`, `494 M`, `12.3 K`. */
export function formatCount(count: number): string {
  for (const [unit, size] of [
    ['T', 1e12],
    ['B', 1e9],
    ['M', 1e6],
    ['K', 1e3],
  ] as const) {
    if (count >= size) return `${(count / size).toPrecision(3)} ${unit}`;
  }
  return String(count);
}
