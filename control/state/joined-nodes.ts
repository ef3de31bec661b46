/** The nodes that were brought along, as control sees them: who is there, and what each was told. */
import { existsSync, readdirSync, rmSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { holderOf } from '../../host/lock-state.ts';
import { readJsonIfThere } from '../../host/whole-file.ts';
import {
  type JoinedNode,
  joinedNodeFiles,
  joinedNodeSchema,
  joinedNodesFolder,
  type OrderStatus,
  orderStatusSchema,
} from '../../spec/joined-node.ts';
import type { StateLayout } from '../../spec/state-layout.ts';

/** Node kinds of this beginning are joined nodes, each a kind of its own. */
const kindPrefix = 'joined-';

export function isJoinedKind(nodeKind: string): boolean {
  return nodeKind.startsWith(kindPrefix);
}

export interface JoinedNodeStatus {
  node: JoinedNode;
  folder: string;
  /** Its process lives, as far as its heartbeat tells. */
  there: boolean;
  /** What it was told and is not over, oldest first. */
  open_orders: string[];
}

/** All that joined and are remembered, those that left included. */
export function inspectJoinedNodes(layout: StateLayout): JoinedNodeStatus[] {
  const base = joinedNodesFolder(layout);
  if (!existsSync(base)) return [];
  return readdirSync(base).flatMap((name) => {
    const folder = join(base, name);
    const read = joinedNodeSchema.safeParse(readJsonIfThere(join(folder, joinedNodeFiles.node)));
    if (!read.success) return [];
    return [
      {
        node: read.data,
        folder,
        there: holderOf(join(folder, joinedNodeFiles.lock)) !== undefined,
        open_orders: openOrdersIfThere(folder),
      },
    ];
  });
}

/** None in a folder that another process is about to forget. */
function openOrdersIfThere(folder: string): string[] {
  try {
    return openOrders(folder);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return [];
    throw error;
  }
}

/** Launch ids a node was given that have not ended, oldest first. */
export function openOrders(folder: string): string[] {
  const orders = join(folder, joinedNodeFiles.orders);
  return readdirSync(orders)
    .flatMap((name) => /^([0-9a-f]{16})\.order\.json$/.exec(name)?.[1] ?? [])
    .filter((launchId) => readOrderStatus(folder, launchId)?.phase !== 'ended')
    .map((launchId) => ({
      launchId,
      at_ms: statSync(join(orders, joinedNodeFiles.order(launchId))).mtimeMs,
    }))
    .sort((a, b) => a.at_ms - b.at_ms)
    .map(({ launchId }) => launchId);
}

export function readOrderStatus(folder: string, launchId: string): OrderStatus | undefined {
  const file = readJsonIfThere(join(folder, joinedNodeFiles.orders, joinedNodeFiles.status(launchId)));
  return file === undefined ? undefined : orderStatusSchema.parse(file);
}

/** A name that no node which is there has. */
export function freeKindName(layout: StateLayout, node: string, id: string): string {
  const name = `${kindPrefix}${node}`;
  const taken = inspectJoinedNodes(layout).some((other) => other.there && other.node.node_kind === name);
  return taken ? `${name}-${id}` : name;
}

/**
 * Forgets nodes that left long ago: by then nobody asks any more how their launches ended. So too what a process left
 * that ended before it could say what node it stands for.
 */
export function forgetOldNodes(layout: StateLayout, now_ms: number): void {
  const statuses = inspectJoinedNodes(layout);
  for (const { folder, there, node } of statuses)
    if (!there && now_ms - node.joined_at_ms > remembered_ms)
      rmSync(folder, { recursive: true, force: true });
  const known = new Set(statuses.map(({ folder }) => folder));
  const base = joinedNodesFolder(layout);
  for (const name of existsSync(base) ? readdirSync(base) : []) {
    const folder = join(base, name);
    const made = known.has(folder) ? undefined : statSync(folder, { throwIfNoEntry: false });
    if (made && now_ms - made.mtimeMs > remembered_ms) rmSync(folder, { recursive: true, force: true });
  }
}

const remembered_ms = 30 * 24 * 3_600_000;
