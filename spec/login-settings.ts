/** `gateway.login` of a site config: people sign in to the dashboard at an OpenID Connect provider. */
import { z } from 'zod';
import { oneLine, oneWord } from './site-words.ts';

/** Roles of people, the one that may do most last. */
export const loginRoles = ['user', 'provider', 'operator'] as const;
export type LoginRole = (typeof loginRoles)[number];

const loopback: readonly string[] = ['127.0.0.1', 'localhost', '[::1]'];

/** Whether nobody beside this machine can listen in. */
export function isOfLoopback(url: string): boolean {
  return URL.canParse(url) && loopback.includes(new URL(url).hostname);
}

const webAddress = z
  .url({ protocol: /^https?$/ })
  .refine(
    (url) => url.startsWith('https:') || isOfLoopback(url),
    'tokens must not travel without TLS: use https',
  );

const groups = z.array(oneLine).default([]);
const perMinute = z.int().min(1).max(1e9).optional();

const rolesSchema = z.strictObject({
  operator: groups.describe(
    'See and do what the holder of the operator’s token may, as far as the page goes.',
  ),
  provider: groups.describe('See also what was computed on devices of the providers that their key names.'),
  user: groups.describe('See their own usage and keys.'),
});

const newUserSchema = z.strictObject({
  models: z.array(oneLine).min(1).optional().describe('Models that they may ask for. Default: all.'),
  requests_per_minute: perMinute.describe('Requests a minute.'),
  tokens_per_minute: perMinute.describe('Tokens of prompts and answers a minute.'),
  budget_tokens: z.int().min(1).max(1e15).optional().describe('Tokens in each window.'),
  budget_window: z.enum(['day', 'month', 'total']).default('month').describe('The window of budget_tokens.'),
});

const day_h = 24;

export const loginSchema = z.strictObject({
  issuer: webAddress.describe(
    'Issuer of the OpenID Connect provider, as its discovery document has it: https://idp.example.org/realms/hpc.',
  ),
  name: oneLine.default('your organization').describe('What the button calls it: Sign in with NAME.'),
  client_id: oneWord.describe('Under which this gateway is registered there.'),
  client_secret_file: oneLine
    .optional()
    .describe(
      'File with the client’s secret, which only you can read (0600). Absent: a public client; PKCE is used by both.',
    ),
  ca_file: oneLine
    .optional()
    .describe('PEM file that vouches for the provider’s certificate, where no public authority does.'),
  scopes: z
    .array(oneWord)
    .default(['openid', 'profile', 'email'])
    .describe('Scopes that are asked for; openid is one of them.'),
  user_claim: oneWord
    .default('preferred_username')
    .describe(
      'Claim that is the name of the user here: one that people cannot change themselves. email counts only where the provider has verified it.',
    ),
  role_claim: oneWord
    .optional()
    .describe(
      'Claim with groups, a text or a list: groups, isMemberOf, eduperson_entitlement, or a path such as realm_access.roles.',
    ),
  roles: rolesSchema.prefault({}).describe('Values of role_claim that give a role; the highest counts.'),
  default_role: z
    .enum(['user', 'refused'])
    .default('user')
    .describe('Of who has none of these values. refused: they may not sign in.'),
  urls: z
    .array(webAddress)
    .default([])
    .describe(
      'Addresses by which browsers reach this gateway where a proxy before it changes the Host header: https://portal.example.org.',
    ),
  idle_h: z
    .number()
    .positive()
    .max(30 * day_h)
    .default(8)
    .describe(
      'Hours after which a session ends that is not used. Lower: safer on shared machines; higher: fewer sign-ins.',
    ),
  session_h: z
    .number()
    .positive()
    .max(30 * day_h)
    .default(day_h)
    .describe(
      'Hours after which a session ends in any case. Lower: changes of groups count sooner; higher: fewer sign-ins.',
    ),
  clock_skew_s: z
    .int()
    .min(0)
    .max(600)
    .default(30)
    .describe(
      'How far the clocks of provider and gateway may be apart. Lower: stricter; higher: tolerates clocks that nobody sets.',
    ),
  provider_logout: z
    .boolean()
    .default(true)
    .describe('Signing out here leads to the provider’s own sign-out, where it has one.'),
  new_user: newUserSchema
    .prefault({})
    .describe('Limits of who signs in and has no key yet. Who has one acts with its limits.'),
});

export type LoginSettings = z.infer<typeof loginSchema>;
