/**
 * Ids under which launches on joined nodes are followed: `joined.<node id>.<launch id>`. No scheduler has ids of this
 * form.
 */

export function joinedJobId(node: string, launch_id: string): string {
  return `joined.${node}.${launch_id}`;
}

/** The parts of such an id; undefined of a scheduler's. */
export function joinedJob(job_id: string): { node: string; launch_id: string } | undefined {
  const [first, node, launch_id] = job_id.split('.');
  return first === 'joined' && node !== undefined && launch_id !== undefined
    ? { node, launch_id }
    : undefined;
}
