/** What a cluster does not say of itself and a site mostly needs, as lines to take the # away from. */
import type { SiteInput } from '../spec/site.ts';

interface Stub {
  key: keyof SiteInput;
  /** What it is for. */
  says: string;
  /** YAML, as it would stand at the top of the file. */
  lines: readonly string[];
}

const stubs: readonly Stub[] = [
  {
    key: 'runtime',
    says: 'What jobs load before an engine starts, and which engines they find then. Those not listed are not there.',
    lines: [
      'runtime:',
      '  modules: [cuda, python]',
      '  python: { kind: venv, path: ~/venvs/vllm }',
      '  engines: { vllm: true, llama.cpp: false }',
    ],
  },
  {
    key: 'network',
    says: 'The interface that nodes reach each other over (ip link, on a node), and whether only you listen on it.',
    lines: ['network:', '  prefer: hsn0', '  engine_interfaces: [hsn0]', '  private_fabric: false'],
  },
  {
    key: 'models_dir',
    says: 'A folder that all nodes see, in which models lie or are pulled to (hpcserve model pull).',
    lines: ['models_dir: ~/models'],
  },
  {
    key: 'model_aliases',
    says: 'Short names that model.yaml may have as a source: alias:small.',
    lines: ['model_aliases:', '  small: hf:Qwen/Qwen3-0.6B'],
  },
];

/** Lines of a comment each, `##` before words and `#` before YAML; none for what the draft has already. */
export function stubLines(site: Readonly<SiteInput>): string[] {
  const missing = stubs.filter(({ key }) => site[key] === undefined);
  const account = site.slurm?.defaults?.account === undefined;
  return [
    '',
    '## Slurm does not say these. Take away the # of what holds here, and correct it.',
    ...missing.flatMap(({ says, lines }) => ['', `## ${says}`, ...lines.map((line) => `# ${line}`)]),
    ...(account
      ? [
          '',
          '## Whose hours jobs use, where Slurm has no default for you: under slurm, defaults, above.',
          '##   account: proj42',
        ]
      : []),
  ];
}
