import type { DeviceDescription } from '../../spec/session-record.ts';

/** A device of this node, with what a child process needs to see it and no other. */
export interface NodeDevice {
  description: DeviceDescription;
  /** What stands for it in `visibility_variable`: an index or UUID, in the form the job's environment uses. */
  visibility_token?: string;
  /** What means the same to CUDA by number; absent: no number does, or none is needed. */
  visibility_number?: string;
  visibility_variable?: 'CUDA_VISIBLE_DEVICES' | 'ROCR_VISIBLE_DEVICES';
  /** Cores of the node that reach an accelerator without another socket between; absent where nobody says. */
  near_cores?: readonly number[] | undefined;
  /** `0000:17:00.0`; of a slice, that of its GPU. Absent where nobody says. */
  pci_bus_id?: string | undefined;
  /**
   * What a worker of the native engine that sees this device and no other calls it: `CUDA0`, `Vulkan1`. Absent: no
   * backend of ggml computes on it, or nobody asked for one.
   */
  ggml_device?: string;
  /** Nothing but ggml's backend knows of it: what it has for memory may be the host's. */
  only_ggml?: true;
}

/** What a worker of the native engine holds it by; undefined where none would compute on it. */
export function lockIdentity({ description, pci_bus_id, ggml_device }: NodeDevice): string | undefined {
  return ggml_device && (description.uuid ?? pci_bus_id ?? ggml_device);
}
