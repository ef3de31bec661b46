/** Tasks of lm-eval whose documents lie beside them: nothing is fetched. */
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

export const task_names = {
  /** Log-likelihoods of several continuations of a text. */
  choice: 'hpcserve_choice',
  /** A continuation up to a line's end or a number of tokens. */
  generate: 'hpcserve_generate',
  /** Log-likelihood of a whole text. */
  rolling: 'hpcserve_rolling',
} as const;

export const documents: readonly { question: string; choices: string[]; answer: number }[] = [
  { question: 'The sun rises in the', choices: [' east', ' west', ' north'], answer: 0 },
  { question: 'Two and two are', choices: [' five', ' four'], answer: 1 },
  { question: 'Ships float because they are', choices: [' light', ' hollow', ' wet', ' old'], answer: 1 },
];

const yaml: Readonly<Record<keyof typeof task_names, string>> = {
  choice: `output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
target_delimiter: ""
metric_list:
  - metric: acc
`,
  generate: `output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{choices[answer]}}"
generation_kwargs:
  until: ["\\n\\n"]
  max_gen_toks: 8
  do_sample: false
metric_list:
  - metric: bypass
`,
  rolling: `output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{question}}{{choices[answer]}}"
metric_list:
  - metric: bits_per_byte
`,
};

/** @returns the folder, for `--include_path` */
export function writeTasks(folder: string): string {
  mkdirSync(folder);
  const file = join(folder, 'documents.json');
  writeFileSync(file, JSON.stringify(documents));
  for (const [name, task] of Object.entries(task_names)) {
    const data = `dataset_path: json\ndataset_kwargs:\n  data_files:\n    test: ${JSON.stringify(file)}\ntest_split: test\n`;
    writeFileSync(join(folder, `${name}.yaml`), `task: ${task}\n${data}${yaml[name as keyof typeof yaml]}`);
  }
  return folder;
}
