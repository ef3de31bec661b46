/** Thrown where a command ran on another machine: its words are shown already, only its exit code is left. */
export class RemoteExit extends Error {
  readonly exit_code: number;

  constructor(exit_code: number) {
    super(`it ended with exit code ${exit_code} on another machine`);
    this.exit_code = exit_code;
  }
}
