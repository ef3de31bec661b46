/** Every key of `config.yaml` and `hpcserve.yaml`, described once: file schema, environment name, flag, default. */
import { z } from 'zod';
import { durationText } from '../../spec/site-words.ts';

export interface ConfigKeyDescription {
  description: string;
  /** Environment variable that sets it. */
  variable: string;
  /** Flag that sets it, where there is one. */
  flag?: string;
  default?: string | number;
  schema: z.ZodType;
}

const word = z.string().regex(/^[^\s\u0000-\u001f]+$/, 'one word');
const line = z.string().regex(/^[^\u0000-\u001f]+$/, 'one line');

const keys = {
  site: {
    description: 'Site config to use: a name or a path.',
    variable: 'HPCSERVE_SITE',
    flag: '--site',
    schema: word,
  },
  state_dir: {
    description: 'State folder; overrides that of the site config.',
    variable: 'HPCSERVE_STATE_DIR',
    flag: '--state-dir',
    schema: line,
  },
  url: {
    description: 'Base URL of a gateway, for `chat`, `models` and `endpoint` away from its site.',
    variable: 'HPCSERVE_URL',
    flag: '--url',
    schema: z.url({ protocol: /^https?$/, error: 'a URL that begins with http:// or https://' }),
  },
  progress: {
    description: 'How progress is shown: auto, tty, plain or json.',
    variable: 'HPCSERVE_PROGRESS',
    flag: '--progress',
    default: 'auto',
    schema: z.enum(['auto', 'tty', 'plain', 'json']),
  },
  deploy_timeout_s: {
    description: 'How long `deploy` waits for a deployment to serve, seconds; 0: without end.',
    variable: 'HPCSERVE_DEPLOY_TIMEOUT_S',
    flag: '--timeout',
    default: 0,
    schema: z.coerce.number().min(0),
  },
  'slurm.partition': {
    description: 'Partition of jobs, or a comma list.',
    variable: 'HPCSERVE_PARTITION',
    flag: '--partition',
    schema: word,
  },
  'slurm.account': {
    description: 'Account to charge jobs to.',
    variable: 'HPCSERVE_ACCOUNT',
    flag: '--account',
    schema: word,
  },
  'slurm.qos': {
    description: 'Quality of service of jobs.',
    variable: 'HPCSERVE_QOS',
    flag: '--qos',
    schema: word,
  },
  'slurm.reservation': {
    description: 'Reservation to run jobs in.',
    variable: 'HPCSERVE_RESERVATION',
    flag: '--reservation',
    schema: word,
  },
  'slurm.constraint': {
    description: 'Node features jobs ask for.',
    variable: 'HPCSERVE_CONSTRAINT',
    flag: '--constraint',
    schema: line,
  },
  'slurm.time_limit': {
    description: 'Wall time of jobs: MM, HH:MM:SS or D-HH:MM:SS.',
    variable: 'HPCSERVE_TIME_LIMIT',
    flag: '--time',
    schema: durationText,
  },
} as const satisfies Record<string, ConfigKeyDescription>;

export type ConfigKey = keyof typeof keys;

export const configKeys: Readonly<Record<ConfigKey, ConfigKeyDescription>> = keys;

/** The same keys as a file: dots are nesting. */
export const configSchema = z.strictObject({
  site: keys.site.schema.optional(),
  state_dir: keys.state_dir.schema.optional(),
  url: keys.url.schema.optional(),
  progress: keys.progress.schema.optional(),
  deploy_timeout_s: z.number().min(0).optional(),
  slurm: z
    .strictObject({
      partition: keys['slurm.partition'].schema.optional(),
      account: keys['slurm.account'].schema.optional(),
      qos: keys['slurm.qos'].schema.optional(),
      reservation: keys['slurm.reservation'].schema.optional(),
      constraint: keys['slurm.constraint'].schema.optional(),
      time_limit: keys['slurm.time_limit'].schema.optional(),
    })
    .optional(),
});
