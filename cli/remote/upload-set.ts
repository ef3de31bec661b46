/** What a command needs there of this machine: the site config, the YAML file, and the files that it names. */
import { createHash } from 'node:crypto';
import { existsSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, dirname, isAbsolute, join, posix, resolve } from 'node:path';
import { parseDocument } from 'yaml';
import type { SshConnection } from '../../slurm/ssh/connection.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { deploymentSchema } from '../../spec/model-yaml.ts';
import { parseYaml, readYamlFile } from '../../spec/yaml-document.ts';
import type { CliContext } from '../context.ts';
import { formatBytes } from '../format/quantities.ts';

/** Brings files into one folder there; temporary copies here are removed with `dispose`. */
export class UploadSet implements Disposable {
  readonly #connection: SshConnection;
  readonly #folder: string;
  readonly #context: CliContext;
  readonly #scratch = mkdtempSync(join(tmpdir(), 'hpcserve-remote-'));

  constructor(connection: SshConnection, folder: string, context: CliContext) {
    this.#connection = connection;
    this.#folder = folder;
    this.#context = context;
  }

  [Symbol.dispose](): void {
    rmSync(this.#scratch, { recursive: true, force: true });
  }

  /** The site config without the part that says how to get there. @returns its path there */
  site(path: string): Promise<string> {
    const document = parseDocument(readFileSync(path, 'utf8'));
    document.deleteIn(['slurm', 'ssh']);
    return this.text('site.yaml', document.toString());
  }

  /**
   * A model.yaml with the files beside it. Sources that are not here are taken for paths there.
   * @param text what the file is to say there, where that is not what it says here
   * @returns its path there
   */
  async deployment(path: string, text?: string): Promise<string> {
    const { value } =
      text === undefined ? readYamlFile(path, deploymentSchema) : parseYaml(text, path, deploymentSchema);
    const document = parseDocument(text ?? readFileSync(path, 'utf8'));
    for (const [index, model] of value.models.entries()) {
      const bring = async (key: string | number, file: string, at: (string | number)[]): Promise<void> => {
        const here = this.#localFile(path, file);
        if (here !== undefined) document.setIn(['models', index, ...at], await this.file(here));
        else if (!isAbsolute(file) && key !== 'source')
          throw new HpcserveError('E_MODEL_MISSING', {
            what: `${model.name}: ${key} ${file} is not here`,
            because: `${resolve(dirname(path), file)} does not exist`,
          });
      };
      await bring('source', model.source, ['source']);
      if (model.chat_template !== undefined)
        await bring('chat_template', model.chat_template, ['chat_template']);
      for (const [at, file] of model.environment_files.entries())
        await bring('environment_files', file, ['environment_files', at]);
    }
    return this.text(`${value.name}.yaml`, document.toString());
  }

  /** One file, under a name that tells its place here, so that two of one name do not meet. @returns its path there */
  async file(path: string): Promise<string> {
    const mark = createHash('sha256').update(resolve(path)).digest('hex').slice(0, 8);
    const remote = posix.join(this.#folder, `${mark}-${basename(path)}`);
    const total = statSync(path).size;
    let told = 0;
    const sent = await this.#connection.upload(path, remote, (bytes) => {
      if (total < 64 * 1024 ** 2 || bytes - told < total / 10) return;
      told = bytes;
      this.#context.note(`${basename(path)}: ${formatBytes(bytes)} of ${formatBytes(total)} there`);
    });
    if (sent && total >= 1024 ** 2)
      this.#context.note(`${basename(path)}: ${formatBytes(total)} brought there`);
    return remote;
  }

  /** @returns the path there of a file with this text */
  async text(name: string, text: string): Promise<string> {
    const here = join(this.#scratch, name);
    writeFileSync(here, text, { mode: 0o600 });
    const remote = posix.join(this.#folder, name);
    await this.#connection.upload(here, remote);
    return remote;
  }

  #localFile(yaml: string, file: string): string | undefined {
    if (isAbsolute(file) || /^(hf:|alias:|~)/.test(file)) return undefined;
    const here = resolve(dirname(yaml), file);
    return existsSync(here) && statSync(here).isFile() ? here : undefined;
  }
}
