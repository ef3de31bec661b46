/** Memory of the host that device workers have beside the pools of their devices: plans count it, agents leave it. */

/**
 * Of one memory that frames lie in between two stages. Lower: less memory a stage; higher: larger chunks of prompts go
 * this way. Two of 512 rows of 8,192 elements.
 */
export const frame_memory_bytes = 34 * 1024 * 1024;

/** Rings that a stage's device is in at once: that of the layout which computes, and that of one that is to come. */
const rings_max = 2;

/**
 * On each device of a pipeline, of frames between its stages.
 * @param nodes of the replica: on one the stage before has the memory, and between two both have
 */
export function frameMemory_bytes(nodes: number): number {
  return rings_max * (nodes > 1 ? 2 : 1) * frame_memory_bytes;
}

/** Through which keys and values of a device come and go that others cannot address, at most. */
export const staging_bytes_max = 128 * 1024 * 1024;
