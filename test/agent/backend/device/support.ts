/** A device with memory of its own on every machine: ggml's Vulkan backend on Mesa's driver for the CPU. */
import type { Backend } from '../../../../agent/backend/backend.ts';
import { deviceBackend } from '../../../../agent/backend/device/device-backend.ts';
import { type Ggml, loadGgml } from '../../../../native/ggml.ts';
import { nativeFolderVariable } from '../../../../native/libraries.ts';
import { vulkanDevice } from '../../../engines/environments.ts';

const { found, lacking: absence } = vulkanDevice();

/** Behind the title of each suite. */
export const lacking: string = absence;

export const isThere: boolean = found !== undefined;

if (found !== undefined)
  Object.assign(process.env, found.environment, { [nativeFolderVariable]: found.library_dir });

export function vulkan(): { ggml: Ggml; backend: Backend } {
  const ggml = loadGgml();
  return { ggml, backend: deviceBackend(ggml, 'Vulkan0') };
}
