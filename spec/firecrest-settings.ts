/** `slurm.firecrest` of a site config: Slurm by FirecREST. */
import { z } from 'zod';
import { oneLine, oneWord } from './site-words.ts';

export const firecrestSchema = z
  .strictObject({
    url: z
      .url({ protocol: /^https?$/ })
      .describe('Its base, such as https://api.example.org/hpc/firecrest/v2.'),
    system: oneWord.describe('Name of the cluster there, as GET /status/systems lists it.'),
    token_url: z.url({ protocol: /^https?$/ }).describe('Token endpoint of the OIDC provider.'),
    client_id: oneWord.describe('Client that acts for you (client-credentials grant).'),
    client_secret_file: oneLine.optional().describe('File with its secret, which only you can read (0600).'),
    client_secret_env: oneWord
      .optional()
      .describe('Or the name of the environment variable that holds it; the keeper needs it too.'),
    requests_per_s: z
      .number()
      .positive()
      .max(100)
      .default(2)
      .describe('Requests in any second at most. Lower: kinder to a shared service.'),
  })
  .superRefine(({ url, token_url, client_secret_file, client_secret_env }, context) => {
    if ((client_secret_file === undefined) === (client_secret_env === undefined))
      context.addIssue({
        code: 'custom',
        path: ['client_secret_file'],
        message: 'give one of client_secret_file and client_secret_env',
      });
    // On loopback nobody listens in.
    for (const [key, value] of Object.entries({ url, token_url })) {
      const { protocol, hostname } = new URL(value);
      if (protocol === 'http:' && !['127.0.0.1', 'localhost', '[::1]'].includes(hostname))
        context.addIssue({
          code: 'custom',
          path: [key],
          message: 'a token must not travel without TLS: use https',
        });
    }
  });
