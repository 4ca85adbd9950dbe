import type { IDisposable } from '@lumino/disposable';
import { Signal, type ISignal } from '@lumino/signaling';

import { ApiError } from '../apiError';
import type { Options } from '../contract';
import type { ICheck, IForm, IFormSource, IKernel } from './contract';
import { Following, type IClusters } from './following';
import { Latest } from './latest';
import { initial, KERNEL, optionsOf, type Values } from './values';

/** Milliseconds after the last key before what is filled in is checked. */
export const WAIT = 400;

/** What went wrong with a request, or with a start. */
export interface IFailure {
  message: string;
  log: string;
}

/** What is filled in for a start, what the server says of it, and the start. Knows nothing of pages. */
export class FormModel implements IDisposable {
  constructor(
    private readonly source: IFormSource,
    private readonly clusters: IClusters,
    wait = WAIT
  ) {
    this.checks = new Latest<Options, ICheck>({
      ask: (options, signal) => source.check(options, signal),
      answered: check => {
        this._checkFailure = null;
        this.setCheck(check);
      },
      failed: error => {
        this._checkFailure = failureOf(error);
        this.setCheck({ errors: {}, script: null });
      },
      wait
    });
  }

  /** Emitted when anything is new. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** What there is to fill in; null: the server has not told yet. */
  get form(): IForm | null {
    return this._form;
  }

  /** The kernels that run Python; null: the server has not told yet. */
  get kernels(): readonly IKernel[] | null {
    return this._kernels;
  }

  get values(): Values {
    return this._values;
  }

  /** What is wrong with what was checked last, by the names of fields; nameless: of no field. */
  get errors(): Readonly<Record<string, string>> {
    return this.check.errors;
  }

  /** The script of the job of what was checked last. */
  get script(): string | null {
    return this.check.script;
  }

  /** The last script that there was: of use until there is another one. Empty: there was none. */
  get lastScript(): string {
    return this._lastScript;
  }

  /** Whether what is filled in has not been checked yet. */
  get isChecking(): boolean {
    return this.checks.isPending;
  }

  /** The kernel that is chosen, if it cannot be started with. */
  get badKernel(): IKernel | undefined {
    const name = this._values[KERNEL];
    return this._kernels?.find(its => its.name === name && its.version === null);
  }

  /** The kernel that is chosen, if it is not among those that the server has told; empty: it is. */
  get unlistedKernel(): string {
    const name = String(this._values[KERNEL] ?? '');
    return this._kernels?.every(its => its.name !== name) ? name : '';
  }

  /** Whether there is to be a start: nothing can be filled in meanwhile. */
  get isStarting(): boolean {
    return this._isStarting;
  }

  /** Whether the server has been asked for it: it goes on without this form. */
  get isFollowing(): boolean {
    return this._isStarting && !this.isChecking;
  }

  /** Whether nothing is known that stands against a start. */
  get canStart(): boolean {
    const isFree = this._form !== null && !this._isStarting && !this.badKernel;
    return isFree && Object.keys(this.errors).length === 0;
  }

  /** Why the last start, or the last request, has failed. */
  get failure(): IFailure | null {
    return this._failure ?? this._checkFailure;
  }

  /** Ask what there is to fill in, and fill in what was remembered. */
  async load(remembered: unknown): Promise<void> {
    const areRead = this.loadKernels();
    try {
      this._form = await this.source.form();
    } catch (error) {
      this._failure = failureOf(error);
      this.emit();
      return;
    }
    this._values = initial(this._form, remembered);
    this.checks.put(optionsOf(this._form, this._values));
    this.emit();
    if ((await areRead) && this.unlistedKernel !== '') {
      // it was removed since it was remembered
      this.set(KERNEL, '');
    }
  }

  /** Fill something in. */
  set(name: string, value: string | boolean): void {
    if (this._form && !this._isStarting) {
      this._values = { ...this._values, [name]: value };
      this.checks.put(optionsOf(this._form, this._values));
      this.emit();
    }
  }

  /**
   * Start what is filled in.
   *
   * @returns Whether there is nothing more to do: the cluster is in a queue or ready. If not, the form tells why.
   */
  async start(): Promise<boolean> {
    const form = this._form;
    if (form === null || this._isStarting) {
      return false;
    }
    this._isStarting = true;
    this._failure = null;
    this.emit();
    let isAccepted = false;
    try {
      // somebody may press Enter sooner than it could be checked
      await this.checks.settled();
      const isGood = Object.keys(this.errors).length === 0 && !this.badKernel;
      isAccepted = isGood && !this._isDisposed && (await this.ask(optionsOf(form, this._values)));
    } catch (error) {
      this._failure = failureOf(error);
    }
    this._isStarting = false;
    this.emit();
    return isAccepted;
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  dispose(): void {
    this._isDisposed = true;
    this.checks.dispose();
    this.following?.stop();
    Signal.clearData(this);
  }

  private async ask(options: Options): Promise<boolean> {
    if (this.failed !== null) {
      // it is told of here, and somebody has done something about it
      this.source.dismiss(this.failed).catch(() => undefined);
      this.failed = null;
    }
    const start = await this.source.start(options);
    if (this._isDisposed) {
      return true;
    }
    this.following = new Following(this.clusters, start);
    const end = await this.following.end;
    if (end === null) {
      return true;
    }
    this.failed = end.id;
    this._failure = { message: end.message, log: end.log };
    return false;
  }

  private async loadKernels(): Promise<boolean> {
    let areRead = true;
    try {
      this._kernels = await this.source.kernels();
    } catch (error) {
      areRead = false;
      this._kernels = [];
      this._failure = failureOf(error);
    }
    this.emit();
    return areRead;
  }

  private setCheck(check: ICheck): void {
    this.check = check;
    this._lastScript = check.script ?? this._lastScript;
    this.emit();
  }

  private emit(): void {
    if (!this._isDisposed) {
      this._changed.emit();
    }
  }

  private readonly checks: Latest<Options, ICheck>;
  private check: ICheck = { errors: {}, script: null };
  private following: Following | undefined;
  // the start that has failed in this form
  private failed: string | null = null;
  private _form: IForm | null = null;
  private _kernels: readonly IKernel[] | null = null;
  private _values: Values = {};
  private _lastScript = '';
  private _isStarting = false;
  private _isDisposed = false;
  private _failure: IFailure | null = null;
  private _checkFailure: IFailure | null = null;
  private readonly _changed = new Signal<this, void>(this);
}

function failureOf(error: unknown): IFailure {
  return {
    message: error instanceof Error ? error.message : String(error),
    log: (error instanceof ApiError ? error.log : null) ?? ''
  };
}
