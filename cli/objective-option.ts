import { Option } from 'commander';
import { objectiveNames } from '../spec/model-yaml.ts';

/** What a plan is for, on the command line. */
export function objectiveOption(): Option {
  return new Option('--objective <name>', 'what the plan is for, instead of what model.yaml says').choices(
    objectiveNames,
  );
}
