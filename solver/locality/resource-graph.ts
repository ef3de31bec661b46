/**
 * Hierarchical resource graph (FlexPipe §7): what loads of stages share on their way. A mark on a path says that a
 * load is under way there, so that the next one is sent elsewhere, or at least knows how long it will take.
 *
 *   cluster   storage                    every load from storage
 *     rack    network of the rack        loads from storage, and from peers in other servers
 *      server   link to its devices      every load, from the server's own memory too
 */
export interface ResourceGraph {
  storage_bytes_per_s: number;
  /** Of each rack's network. */
  rack_bytes_per_s: number;
  servers: readonly ResourceServer[];
}

export interface ResourceServer {
  id: string;
  rack: string;
  /** From its memory to one of its devices and all of them: the link that they share. */
  link_bytes_per_s: number;
}

/** Where a load reads: the memory of the server itself, that of another server, or storage. */
export type LoadSource = 'host' | 'peer' | 'storage';

/** A load of one stage that has been decided. */
export interface ScalingMark {
  server: string;
  source: LoadSource;
  /** When it is expected to be over; later the mark counts no more. */
  end_ms: number;
}

export interface PredictedLoad {
  load_s: number;
  /** The level that sets the pace. */
  bottleneck: 'server' | 'rack' | 'cluster';
}

/** Time of a load beside those that are marked; every level is shared evenly among the loads on it. */
export function predictLoad(
  graph: ResourceGraph,
  marks: readonly ScalingMark[],
  now_ms: number,
  load: { server: ResourceServer; source: LoadSource; bytes: number },
): PredictedLoad {
  const { server, source, bytes } = load;
  const rackOf = new Map(graph.servers.map(({ id, rack }) => [id, rack]));
  const active = marks.filter(({ end_ms }) => end_ms > now_ms);
  const count = (crosses: (mark: ScalingMark) => boolean): number => 1 + active.filter(crosses).length;
  const levels: [PredictedLoad['bottleneck'], number][] = [
    ['server', server.link_bytes_per_s / count((mark) => mark.server === server.id)],
  ];
  if (source !== 'host') {
    const sharing = count((mark) => mark.source !== 'host' && rackOf.get(mark.server) === server.rack);
    levels.push(['rack', graph.rack_bytes_per_s / sharing]);
  }
  if (source === 'storage')
    levels.push(['cluster', graph.storage_bytes_per_s / count((mark) => mark.source === 'storage')]);
  const [bottleneck, rate] = levels.reduce((slowest, level) => (level[1] < slowest[1] ? level : slowest));
  return { load_s: bytes / rate, bottleneck };
}
