/** Where the weights of a model, or of its stage on a device, came from when they were loaded last. */
export interface WeightSources {
  /** In the device's memory before: of the same model, or of one that shares them. */
  reused_bytes: number;
  /** All others, and how long they took. */
  loaded_bytes: number;
  duration_ms: number;
  /** Of those, what came from the memory of other nodes, by node; the rest came from the model's file. */
  from_nodes: Readonly<Record<string, number>>;
  /** Why no more came from there, by node. */
  troubles?: Readonly<Record<string, string>>;
}
