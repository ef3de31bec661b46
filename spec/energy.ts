/** What counters of the hardware say of devices, on its way from node agents to gateways. */

/** Both grow from the start of the node agent on. */
export interface EnergyReading {
  joules: number;
  /** When it was read, ms of a clock that does not jump. */
  at_ms: number;
}
