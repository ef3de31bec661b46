import { z } from 'zod';

const auditActions = ['create', 'change', 'rotate', 'block', 'unblock', 'revoke'] as const;

/** Who did what with which key, and when. No secret is in it. */
export const auditEntrySchema = z.object({
  time_ms: z.number(),
  /** `operator` (who has the admin token), or the id of a key. */
  actor: z.string(),
  action: z.enum(auditActions),
  /** Id of the key it was done with. */
  subject: z.string(),
  details: z.looseObject({}),
});
export type AuditEntry = z.infer<typeof auditEntrySchema>;

/** `GET /hpcserve/v1/audit`. */
export const auditAnswerSchema = z.object({ audit: z.array(auditEntrySchema) });
