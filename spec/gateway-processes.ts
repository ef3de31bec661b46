/** What a gateway says of its processes at `GET /hpcserve/v1/processes`. */
import { z } from 'zod';

const workerSchema = z.object({
  /** From 1. */
  number: z.int().min(1),
  /** `ended`: another one is about to take its place. */
  state: z.enum(['answers', 'starts', 'ended']),
  /** Absent where it ended. */
  pid: z.int().optional(),
  started_at_ms: z.number().optional(),
  /** Of clients. */
  connections: z.int().min(0),
});

export const gatewayProcessesSchema = z.object({
  /** How many are to relay requests; 1: the gateway itself does. */
  processes: z.int().min(1),
  /** Those that relay for it; none where it does that itself. */
  workers: z.array(workerSchema),
});

export type WorkerState = z.infer<typeof workerSchema>;
export type GatewayProcesses = z.infer<typeof gatewayProcessesSchema>;
