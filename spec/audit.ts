import { z } from 'zod';

const keyActions = ['create', 'change', 'rotate', 'block', 'unblock', 'revoke'] as const;
/** Of people in the dashboard: signed in and out, and refused although the provider knows them. */
const loginActions = ['login', 'logout', 'refuse'] as const;

/** Who did what with which key, and when. No secret is in it. */
export const auditEntrySchema = z.object({
  time_ms: z.number(),
  /** `operator` (who has the admin token), `login` (the gateway, for who signs in), or the id of a key. */
  actor: z.string(),
  action: z.enum([...keyActions, ...loginActions]),
  /** Id of the key it was done with; of who was refused: the name, as far as it is known. */
  subject: z.string(),
  details: z.looseObject({}),
});
export type AuditEntry = z.infer<typeof auditEntrySchema>;

/** `GET /hpcserve/v1/audit`. */
export const auditAnswerSchema = z.object({ audit: z.array(auditEntrySchema) });
