/** The accelerators of a node that ggml's backends compute on, beside what the drivers' own tools list. */
import type { ListedDevice } from '../../native/list-devices.ts';
import { busId } from './near-cores.ts';
import type { NodeDevice } from './node-device.ts';

/**
 * Devices with the name that a worker of the native engine uses; those that no other tool lists come behind them. A
 * worker sees the devices of its units alone where a variable says which (CUDA, ROCm), and counts from 0 there; other
 * backends show all, by the names that they were listed under. Where two backends compute on a device, the first of
 * the list does: a vendor's own comes before Vulkan in ggml's order.
 *
 * A process of CUDA enumerates one MIG slice and no device beside it, so that the list lacks the others of a node with
 * slices: each is the only one that its worker sees. What CUDA or ROCm lists and no driver does (a GPU none of whose
 * slices answers, say) is left out: no variable would show it to a worker and no other device.
 */
export function withGgmlDevices(
  devices: readonly NodeDevice[],
  listed: readonly ListedDevice[],
): NodeDevice[] {
  const unmatched = new Set(listed);
  const seesOne = devices.some(isSlice) && listed.some(({ name }) => /^CUDA\d+$/.test(name));
  const known = devices.map((device) => {
    const same = listed.filter((each) => isSame(device, each));
    for (const each of same) unmatched.delete(each);
    const own = same.find(({ name }) => narrowed(device).test(name));
    const other = same.find(({ name }) => !isNarrowed(name));
    if (own) return { ...device, ggml_device: own.name.replace(/\d+$/, '0') };
    if (seesOne && device.visibility_variable === 'CUDA_VISIBLE_DEVICES')
      return { ...device, ggml_device: 'CUDA0' };
    return other ? { ...device, ggml_device: other.name } : device;
  });
  return [...known, ...[...unmatched].filter(({ name }) => !isNarrowed(name)).map(onlyOfGgml)];
}

/** Whether a variable says which of its backend's devices a process sees. */
function isNarrowed(name: string): boolean {
  return /^(CUDA|ROCm)\d+$/.test(name);
}

function isSlice({ description, visibility_variable }: NodeDevice): boolean {
  return description.kind === 'mig' && visibility_variable === 'CUDA_VISIBLE_DEVICES';
}

/** Names of the devices that the variable of a device narrows. */
function narrowed({ visibility_variable }: NodeDevice): RegExp {
  return visibility_variable === 'ROCR_VISIBLE_DEVICES' ? /^ROCm\d+$/ : /^CUDA\d+$/;
}

function isSame({ pci_bus_id }: NodeDevice, listed: ListedDevice): boolean {
  return pci_bus_id !== undefined && pci_bus_id === busId(listed.pci_bus_id ?? '');
}

function onlyOfGgml({ name, description, memory_total_bytes }: ListedDevice): NodeDevice {
  return {
    description: { kind: 'gpu', model: description, memory_bytes: memory_total_bytes, isa: [] },
    ggml_device: name,
    only_ggml: true,
  };
}
