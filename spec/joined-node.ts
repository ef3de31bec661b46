/**
 * A node that somebody brought along: `hpcserve run` without a command, in an allocation of theirs. Its folder
 * `<state>/joined/<id>/` is where it says what it has, and where it is told what to run: on the filesystem that login
 * and compute nodes share, in folders of its owner alone, as all orders to jobs are.
 */
import { join } from 'node:path';
import { z } from 'zod';
import type { StateLayout } from './state-layout.ts';

export const joinedNodeSchema = z.object({
  format: z.literal(1),
  id: z.string().regex(/^[0-9a-f]{8}$/),
  /** Name under which plans and model.yaml know it. */
  node_kind: z.string(),
  node: z.string(),
  hostname: z.string(),
  tier: z.enum(['stable', 'scavenger']),
  job_id: z.string().optional(),
  /** When its allocation ends, Unix ms, as far as it knows. */
  job_end_time_ms: z.number().optional(),
  joined_at_ms: z.number(),
  /** Alike, as the node agent found them: its accelerators, else the CPU sockets. */
  devices: z.array(
    z.object({
      kind: z.enum(['cpu', 'gpu', 'mig']),
      model: z.string(),
      memory_bytes: z.number(),
      isa: z.array(z.string()),
      cores: z.array(z.number()).optional(),
    }),
  ),
  /** Cores and memory that the allocation has there. */
  cpus: z.int().min(1),
  memory_bytes: z.number(),
  architecture: z.enum(['x86_64', 'aarch64']),
  isa: z.array(z.string()),
});
export type JoinedNode = z.infer<typeof joinedNodeSchema>;

/** What a joined node is told to run: written by control, obeyed by the node. */
export const orderSchema = z.strictObject({ format: z.literal(1), launch_file: z.string() });

/** What became of an order: written by the node. */
export const orderStatusSchema = z.object({
  format: z.literal(1),
  phase: z.enum(['running', 'ended']),
  started_at_ms: z.number(),
  ended_at_ms: z.number().optional(),
  exit_code: z.number().optional(),
  /** Why it was not run, or ended. */
  reason: z.string().optional(),
});
export type OrderStatus = z.infer<typeof orderStatusSchema>;

export function joinedNodesFolder(layout: StateLayout): string {
  return join(layout.root, 'joined');
}

/** Names in the folder of a joined node. */
export const joinedNodeFiles = {
  node: 'node.json',
  /** Held, with a heartbeat, as long as the node is there. */
  lock: 'lock',
  orders: 'orders',
  order: (launchId: string): string => `${launchId}.order.json`,
  status: (launchId: string): string => `${launchId}.status.json`,
  /** Its content: the name of a signal. */
  cancel: (launchId: string): string => `${launchId}.cancel`,
} as const;
