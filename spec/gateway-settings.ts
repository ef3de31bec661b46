/** The gateway of a site config. */
import { z } from 'zod';
import { bodySettings } from './body-settings.ts';
import { clientSettings } from './client-settings.ts';
import { loginSchema } from './login-settings.ts';
import { duration, oneLine, oneWord, partitions } from './site-words.ts';

const fullPath = oneLine.regex(/^[~$/]/, 'a full path, or one that begins with ~ or $NAME');

/** Routing policies of the gateway; see docs/gateway.md. */
export const routingPolicyNames = ['by-engine', 'least-load'] as const;
export type RoutingPolicyName = (typeof routingPolicyNames)[number];

const gatewayTlsSchema = z
  .strictObject({
    self_signed: z
      .boolean()
      .default(false)
      .describe(
        'Let the site have a certificate authority of its own, made once in its state folder; clients are given its tls/ca.pem.',
      ),
    certificate_file: fullPath
      .optional()
      .describe('PEM file with the certificate and its chain; read again when it changes.'),
    key_file: fullPath.optional().describe('PEM file with its private key, which only you may read.'),
    ca_file: fullPath
      .optional()
      .describe('PEM file that clients must trust, where no public authority vouches for the certificate.'),
    names: z
      .array(oneWord)
      .default([])
      .describe(
        'With self_signed: further names and addresses of the gateway, beside those of its host and localhost.',
      ),
  })
  .superRefine(({ self_signed, certificate_file, key_file, ca_file }, context) => {
    const files = [certificate_file, key_file].filter((file) => file !== undefined).length;
    if (self_signed ? files > 0 || ca_file !== undefined : files !== 2)
      context.addIssue({
        code: 'custom',
        message: 'give either self_signed: true, or certificate_file and key_file',
      });
  });

/** More have more to say to the process that counts for all than it can listen to. */
export const processes_max = 16;

/** As long as a model's `timeouts.first_token_s` is where nobody sets it. */
export const loadWaitDefault_s = 600;

export const gatewaySchema = z.strictObject({
  place: z
    .enum(['login', 'job'])
    .default('login')
    .describe('login: a process on the machine that deploys. job: a small job of its own.'),
  host: oneWord.default('127.0.0.1').describe('Address it listens on.'),
  port: z.int().min(0).max(65_535).default(0).describe('Port it listens on; 0: a free one, then kept.'),
  processes: z
    .int()
    .min(1)
    .max(processes_max)
    .default(1)
    .describe(
      'Processes that relay requests, behind one port. 1: the gateway itself, as a login node wants it. More: so many workers, and one process that counts for all of them; see docs/gateway.md. Higher: more requests a second, on as many cores; lower: less memory.',
    ),
  socket: fullPath
    .optional()
    .describe(
      'Unix socket beside the port, for clients of the same host: a path of at most 100 bytes, in a folder that only you may enter (made 0700 where it is absent). Others than the first gateway add -2, -3, …',
    ),
  tls: gatewayTlsSchema
    .optional()
    .describe('HTTPS for clients. Absent: plain HTTP, which is fit for loopback addresses only.'),
  login: loginSchema
    .optional()
    .describe(
      'Sign in to the dashboard at an OpenID Connect provider, beside keys; see docs/dashboard.md. Absent: keys alone.',
    ),
  partition: partitions.optional().describe('Partition of the gateway’s job.'),
  time_limit: duration.optional().describe('Wall time of the gateway’s job.'),
  routing: z
    .enum(routingPolicyNames)
    .default('by-engine')
    .describe(
      'Who answers a request. by-engine: native replicas on CPUs first and the fullest batch that fits, wrapped engines by the beginning of the prompt. least-load: the least load.',
    ),
  wait_max_s: z
    .number()
    .positive()
    .default(120)
    .describe(
      'Longest time that a request may be expected to wait for a place, where one answer takes less; beyond it is refused with 429. Lower: overload shows sooner; higher: bursts are outlived.',
    ),
  load_wait_s: z
    .number()
    .min(0)
    .default(loadWaitDefault_s)
    .describe(
      'Longest time that a request, or a stream that lost its replica, waits for one that loads. Lower: errors show sooner; higher: larger models may be loaded meanwhile.',
    ),
  trace: z
    .boolean()
    .default(false)
    .describe(
      'Keep with each request hashes of its prompt, 16 tokens each and with a secret salt, and its sampling parameters, for `hpcserve trace`.',
    ),
  cpus: z.int().min(1).default(2).describe('CPUs of the gateway’s job.'),
  memory_gb: z.number().positive().default(4).describe('Memory of the gateway’s job, in GB.'),
  ...bodySettings,
  ...clientSettings,
});
